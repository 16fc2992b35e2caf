# SPDX-License-Identifier: Apache-2.0
"""FPGAs of Xilinx, and their shells."""
