"""Static checks of definitions: references, flow, cycles, placeholders, conditions, tools and settings."""
