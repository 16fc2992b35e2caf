# SPDX-License-Identifier: Apache-2.0
"""Gates on the code and on the project's own tools."""
