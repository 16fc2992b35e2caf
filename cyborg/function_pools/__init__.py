# SPDX-License-Identifier: Apache-2.0
"""Function pools: programmed slots that are kept free for consumers."""
