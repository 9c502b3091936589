"""Values of options: compression, grouping, hierarchy, weight sync, schedules, recipes, rates."""
