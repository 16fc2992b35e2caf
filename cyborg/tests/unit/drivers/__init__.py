# SPDX-License-Identifier: Apache-2.0
"""Parts of drivers and of their base class."""
