# SPDX-License-Identifier: Apache-2.0
"""Messages between services: true, odd, forged and hostile ones."""
