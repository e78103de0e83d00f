<?php
// A front controller, which routes as those of Slim 3 and Symfony do.
require __DIR__ . '/../handler.php';

function path()
{
    if (($_SERVER['PATH_INFO'] ?? '') !== '') {
        return $_SERVER['PATH_INFO'];
    }
    $uri = $_SERVER['REQUEST_URI'];
    // An absolute URI.
    if (!str_starts_with($uri, '/')) {
        $uri = parse_url($uri, PHP_URL_PATH) ?: '/';
    }
    $path = rawurldecode(explode('?', $uri)[0]);
    return str_starts_with($path, '/index.php/') ? substr($path, strlen('/index.php')) : $path;
}

answer(path() === '/login' ? 'login' : 'other');
