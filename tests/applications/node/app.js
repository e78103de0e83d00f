// Answers with what a handler reads from a request, in several frameworks of Node. Arguments: the server, the port.
// Frameworks have their default settings. Only Express has its extended parser of queries.
const http = require('node:http');

const [server, port] = [process.argv[2], Number(process.argv[3])];
const headers = (handler) => ({ 'content-type': 'application/json', 'x-handler': handler });

// JSON in ASCII. What is absent is null.
function body(handler, method, query, cookie, key, plan) {
  const reading = { handler, method, query, cookie, key, plan };
  return JSON.stringify(reading, (_, value) => value ?? null).replace(
    /[\u007f-\uffff]/g,
    (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, '0')}`,
  );
}

function express() {
  const express = require('express');
  const app = express();
  app.set('query parser', 'extended');
  app.use(require('cookie-parser')());
  const handler = (name) => (request, response) => {
    const [query, cookie] = [request.query.plan, request.cookies.session];
    const text = body(name, request.method, query, cookie, request.get('x-api-key'), request.get('x-plan'));
    response.set(headers(name)).end(text);
  };
  app.all('/login', handler('login'));
  app.use(handler('other'));
  app.listen(port, '127.0.0.1');
}

function fastify(fastify, cookies) {
  const app = fastify();
  app.register(cookies);
  // Any type of body is accepted.
  app.addContentTypeParser('*', (_request, _payload, done) => done(null));
  const handler = (name) => (request, reply) => {
    const [query, cookie] = [request.query.plan, request.cookies.session];
    const text = body(name, request.method, query, cookie, request.headers['x-api-key'], request.headers['x-plan']);
    reply.code(200).headers(headers(name)).send(text);
  };
  app.all('/login', handler('login'));
  app.setNotFoundHandler(handler('other'));
  app.listen({ port, host: '127.0.0.1' });
}

function koa() {
  const Koa = require('koa');
  const Router = require('@koa/router');
  const app = new Koa();
  const router = new Router();
  const handler = (name) => (context) => {
    const [query, cookie] = [context.query.plan, context.cookies.get('session')];
    context.status = 200;
    context.set(headers(name));
    context.body = body(name, context.method, query, cookie, context.headers['x-api-key'], context.headers['x-plan']);
  };
  router.all('/login', handler('login'));
  app.use(router.routes()).use(handler('other'));
  app.listen(port, '127.0.0.1');
}

function hono() {
  const { Hono } = require('hono');
  const { getCookie } = require('hono/cookie');
  const app = new Hono();
  const handler = (name) => (context) => {
    const [query, cookie] = [context.req.query('plan'), getCookie(context, 'session')];
    const [key, plan] = [context.req.header('x-api-key'), context.req.header('x-plan')];
    return context.body(body(name, context.req.method, query, cookie, key, plan), 200, headers(name));
  };
  app.all('/login', handler('login'));
  app.notFound(handler('other'));
  require('@hono/node-server').serve({ fetch: app.fetch, port, hostname: '127.0.0.1' });
}

function restify() {
  const restify = require('restify');
  const app = restify.createServer();
  const handler = (name) => (request, response) => {
    const [query, cookie] = [request.query.plan, request.cookies.session];
    const text = body(name, request.method, query, cookie, request.header('x-api-key'), request.header('x-plan'));
    response.sendRaw(200, text, headers(name));
  };
  // These run before the router, so for an unknown path too.
  app.pre(restify.plugins.queryParser(), require('restify-cookies').parse);
  for (const method of ['get', 'head', 'post', 'put', 'patch', 'del', 'opts']) {
    app[method]('/login', (request, response, next) => {
      handler('login')(request, response);
      next();
    });
  }
  for (const event of ['NotFound', 'MethodNotAllowed']) {
    app.on(event, (request, response, _error, done) => {
      handler('other')(request, response);
      done();
    });
  }
  app.listen(port, '127.0.0.1');
}

function h3() {
  const { createApp, createRouter, defineEventHandler, getCookie, getHeader, getQuery, setHeaders, toNodeListener } =
    require('h3');
  const handler = (name) =>
    defineEventHandler((event) => {
      const [query, cookie] = [getQuery(event).plan, getCookie(event, 'session')];
      setHeaders(event, headers(name));
      return body(name, event.method, query, cookie, getHeader(event, 'x-api-key'), getHeader(event, 'x-plan'));
    });
  const app = createApp();
  app.use(createRouter().use('/login', handler('login')).use('/**', handler('other')));
  http.createServer(toNodeListener(app)).listen(port, '127.0.0.1');
}

// No framework: a common way to find the path and the query.
function url() {
  const { parse } = require('cookie');
  const serve = (request, response) => {
    let url;
    try {
      url = new URL(request.url, 'http://a');
    } catch {
      response.writeHead(400).end();
      return;
    }
    const name = url.pathname === '/login' ? 'login' : 'other';
    const [query, cookie] = [url.searchParams.get('plan'), parse(request.headers.cookie ?? '').session];
    const [key, plan] = [request.headers['x-api-key'], request.headers['x-plan']];
    response.writeHead(200, headers(name)).end(body(name, request.method, query, cookie, key, plan));
  };
  http.createServer(serve).listen(port, '127.0.0.1');
}

// A request that makes a framework throw has no answer. The server stays.
process.on('uncaughtException', (error) => console.error(error));

const servers = {
  express,
  fastify4: () => fastify(require('fastify4'), require('fastify-cookie4')),
  fastify5: () => fastify(require('fastify5'), require('@fastify/cookie')),
  koa,
  hono,
  restify,
  h3,
  url,
};
servers[server]();
