# SPDX-License-Identifier: Apache-2.0
"""How a deployable can be programmed: the words of drivers, the database, options and the API."""

#: A region of its own, offered whatever it runs.
DYNAMIC = "dynamic"
#: One program for all handles of the deployable, which offers nothing until it is programmed.
SINGLE_PROGRAM = "single-program"

ALL = (DYNAMIC, SINGLE_PROGRAM)
