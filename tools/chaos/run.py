#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Break everything around Cyborg and Cyborg itself, while clients use it; see that nothing is lost.

    run.py --folder FOLDER [--junit FILE] [--kills N] [--seed SEED] [--database postgresql]

Without --kills it takes some four minutes. Everything is started here on free ports of the
loopback, RabbitMQ and the database server too, and is stopped at the end. Logs and configuration
stay in FOLDER/run.
"""

import sys

if __name__ == "__main__":
    # Only here: each process of the cloud imports this file as well, and needs none of it.
    import suite

    sys.exit(suite.main())
