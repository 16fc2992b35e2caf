# SPDX-License-Identifier: Apache-2.0
"""What Placement is told about the devices."""
