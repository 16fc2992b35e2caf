# SPDX-License-Identifier: Apache-2.0
"""JSON Schemas (2020-12) of what the API takes and gives, one module a resource."""
