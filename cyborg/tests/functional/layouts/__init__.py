# SPDX-License-Identifier: Apache-2.0
"""Cards that are divided anew."""
