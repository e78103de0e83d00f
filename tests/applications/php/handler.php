<?php
// Answers with what a script reads from a request.

// JSON in ASCII, with bytes as Latin-1 characters. What is absent is null.
function plain($value)
{
    if (is_array($value)) {
        return array_combine(array_map('plain', array_keys($value)), array_map('plain', $value));
    }
    return is_string($value) ? iconv('ISO-8859-1', 'UTF-8', $value) : $value;
}

function answer($handler)
{
    $body = json_encode(plain([
        'handler' => $handler,
        'method' => $_SERVER['REQUEST_METHOD'],
        'query' => $_GET['plan'] ?? null,
        'cookie' => $_COOKIE['session'] ?? null,
        'key' => $_SERVER['HTTP_X_API_KEY'] ?? null,
        'plan' => $_SERVER['HTTP_X_PLAN'] ?? null,
        'host' => $_SERVER['HTTP_HOST'] ?? null,
        'authorization' => $_SERVER['HTTP_AUTHORIZATION'] ?? null,
    ]));
    header('Content-Type: application/json');
    header('Content-Length: ' . strlen($body));
    header("x-handler: $handler");
    echo $body;
}
