# SPDX-License-Identifier: Apache-2.0
"""The status page: who gets it, and how it is seen in a browser."""
