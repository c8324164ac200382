"""`python -m tools.clients sdk litellm vercel` installs those clients."""

import sys

from tools.clients.install import main

sys.exit(main(sys.argv[1:]))
