"""Templates of the pages (jinja2, autoescaped): one a page, and the sections of the report."""
