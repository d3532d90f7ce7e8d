def use(backend):
    pass
