// From the address with the token to where the page is; a hop of our own, since a strict cookie goes on no other.
location.replace(new URL("..", document.currentScript.src).pathname + location.hash);
