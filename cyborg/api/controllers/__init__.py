# SPDX-License-Identifier: Apache-2.0
"""One controller module a REST resource."""
