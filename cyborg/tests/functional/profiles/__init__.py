# SPDX-License-Identifier: Apache-2.0
"""Device profiles, what they fit, and taints."""
