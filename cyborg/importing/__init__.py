# SPDX-License-Identifier: Apache-2.0
"""Take over the database of the released upstream: read it, convert its rows, write ours."""
