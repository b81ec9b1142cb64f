"""The page's script, in parts that share one scope. What it shows of the data are text nodes."""

from models.reporting.audit.script.choose import CHOOSE
from models.reporting.audit.script.data import DATA
from models.reporting.audit.script.histogram import HISTOGRAM
from models.reporting.audit.script.pair import PAIR
from models.reporting.audit.script.review import REVIEW
from models.reporting.audit.script.start import START
from models.reporting.audit.script.words import WORDS

SCRIPT = "".join(
    ['(() => {\n"use strict";', DATA, WORDS, PAIR, HISTOGRAM, CHOOSE, REVIEW, START, "})();"]
)
