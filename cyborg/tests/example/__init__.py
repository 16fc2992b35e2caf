# SPDX-License-Identifier: Apache-2.0
"""What the guide "Write a driver in an hour" shows."""
