# SPDX-License-Identifier: Apache-2.0
"""What a request may be, before any controller sees it."""
