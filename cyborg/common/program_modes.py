# SPDX-License-Identifier: Apache-2.0
"""Modes of programming a deployable: words of drivers, the database, options and the API."""

#: A region of its own, offered whatever it runs.
DYNAMIC = "dynamic"
#: One program for all handles of the deployable, which offers nothing until it is programmed.
SINGLE_PROGRAM = "single-program"
#: The same without images: the driver knows the layouts that it can have, each by its name.
LAYOUT = "layout"

ALL = (DYNAMIC, SINGLE_PROGRAM, LAYOUT)
#: Those whose deployables have one program for all handles.
FOR_ALL_HANDLES = (SINGLE_PROGRAM, LAYOUT)
