"""The papers' tables and figures once more: what each claims, and what runs show of it."""
