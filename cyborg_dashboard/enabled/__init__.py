# SPDX-License-Identifier: Apache-2.0
"""What Horizon is told of the panels: link or copy these files into its ``local/enabled``."""
