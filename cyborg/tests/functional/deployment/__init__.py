# SPDX-License-Identifier: Apache-2.0
"""Ways to install and run the services, as their guides say it."""
