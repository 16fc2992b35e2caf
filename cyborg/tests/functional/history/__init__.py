# SPDX-License-Identifier: Apache-2.0
"""History, usage and quotas."""
