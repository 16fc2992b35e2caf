# SPDX-License-Identifier: Apache-2.0
"""The conductor turns what the database wants into facts."""
