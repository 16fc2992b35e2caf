# SPDX-License-Identifier: Apache-2.0
"""Allocations: what a consumer that is no instance of Nova's has, by one request."""
