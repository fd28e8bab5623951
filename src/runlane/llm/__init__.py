"""Language models: the Model protocol and registry, providers, the adapter to the provider library, scripted models."""
