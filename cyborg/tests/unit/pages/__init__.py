# SPDX-License-Identifier: Apache-2.0
"""Pages: what they name exists, and what exists is named."""
