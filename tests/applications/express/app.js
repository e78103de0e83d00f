// The handlers that limits name, in Express. Each answers with its name. Argument: the port.
const express = require('express');

const app = express();
const handler = (name) => (_request, response) => response.set('x-handler', name).end();
app.all('/login', handler('login'));
app.use('/search', handler('search'));
app.all('/files/:name', handler('files'));
app.use('/admin', handler('admin'));
app.all('/Account/Reset', handler('reset'));
app.listen(Number(process.argv[2]), '127.0.0.1');
