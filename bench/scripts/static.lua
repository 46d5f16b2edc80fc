-- A request that never changes: what it says is known before the start.
wrk.headers["Accept"] = "text/html"
wrk.headers["Cookie"] = "session=0123456789abcdef"
