#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Break Cyborg and everything around it while clients use it; check that nothing is lost.

    run.py --folder FOLDER [--junit FILE] [--kills N] [--seed SEED] [--database postgresql]

Without --kills it takes some four minutes. Everything is started here on free ports of the
loopback, RabbitMQ and the database server too, and is stopped at the end. Logs and configuration
stay in FOLDER/run.
"""

import sys

if __name__ == "__main__":
    # Imported here, because each process of the cloud imports this file too and does not need it.
    import suite

    sys.exit(suite.main())
