"""`python -m tools.engines vllm sglang` installs those engines and makes the model."""

import sys

from tools.engines.install import main

sys.exit(main(sys.argv[1:]))
