# SPDX-License-Identifier: Apache-2.0
"""The WSME types of what the API takes and gives, one module a resource."""
