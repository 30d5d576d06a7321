// From the address with the token to where the page is; an extra redirect by this page, since a strict cookie is sent only on requests of our own pages.
location.replace(new URL("..", document.currentScript.src).pathname + location.hash);
