# SPDX-License-Identifier: Apache-2.0
"""Device drivers and the data they report."""
