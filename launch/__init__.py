"""What a person types."""

import logging

# Matplotlib reports, when it is imported, a cache of fonts that it cannot write, which no
# user has to mend; so it is told before a command imports it.
logging.getLogger("matplotlib").setLevel(logging.ERROR)
