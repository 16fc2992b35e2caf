# SPDX-License-Identifier: Apache-2.0
"""What the agent does on its host: looks, reports, writes, and keeps its rights apart."""
