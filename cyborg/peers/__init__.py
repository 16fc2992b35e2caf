# SPDX-License-Identifier: Apache-2.0
"""Other services: how they are reached, and what is believed of their answers."""
