# SPDX-License-Identifier: Apache-2.0
"""Programming of devices, from the request to the card."""
