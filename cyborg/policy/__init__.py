# SPDX-License-Identifier: Apache-2.0
"""The caller of a request, and what the policy permits."""
