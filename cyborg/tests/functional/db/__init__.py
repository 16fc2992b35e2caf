# SPDX-License-Identifier: Apache-2.0
"""The schema, its upgrades, imports, and what transactions cost."""
