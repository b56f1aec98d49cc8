"""The changes that users can make to a cluster from its pages.

For each change the user fills in a form. The console then shows a plan: the steps, and, if data or
offsets can be lost, a text to type as confirmation. It applies the plan with the public client.
``table`` lists the changes."""
