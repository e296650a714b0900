"""PROJECT: greets everyone who comes."""

from agentic import App

app = App("PROJECT")
names = app.topic("names", value=str)
greetings = app.topic("greetings", value=str)


@app.agent(names, to=greetings)
async def greet(stream):
    async for name in stream:
        yield f"hello, {name}"
