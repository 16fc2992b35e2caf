# SPDX-License-Identifier: Apache-2.0
"""Nova's own code beside Cyborg's."""
