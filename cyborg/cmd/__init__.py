# SPDX-License-Identifier: Apache-2.0
"""The command-line programs: each builds its parts from the configuration and runs them."""
