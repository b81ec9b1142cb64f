"""The page's script, in parts that share one scope. What it shows of the data are text nodes."""

from models.audit.script.choose import CHOOSE
from models.audit.script.data import DATA
from models.audit.script.histogram import HISTOGRAM
from models.audit.script.pair import PAIR
from models.audit.script.review import REVIEW
from models.audit.script.start import START
from models.audit.script.words import WORDS

SCRIPT = "".join(
    ['(() => {\n"use strict";', DATA, WORDS, PAIR, HISTOGRAM, CHOOSE, REVIEW, START, "})();"]
)
